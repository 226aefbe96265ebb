"""Bounds and heartbeats of a channel, named once for both of its ends, and what a node's callers may hold altogether.

What callers make a node hold is the sum of these, each reached only by callers who do their worst:

    requests under way   REQUESTS_BYTES          received in part or whole, and not done with
    produce streams      PRODUCE_STREAMS_BYTES   one message each that is not whole yet
    windows              WINDOWS_BYTES           sent to calls that read no further
    answers              ANSWERS_BYTES           made, and not taken by their callers
    partitions           MAX_FOLLOWED            of reads that wait, some hundred bytes each
    record reads         MAX_RECORD_READS        one message each that waits for room, 1 MiB or a record

Importing this loads no gRPC.
"""

from __future__ import annotations

#: What a request may hold, gRPC's own default. gRPC copies a message in one go, during which nobody else is served.
MAX_REQUEST_BYTES = 4 << 20
#: What a response may hold: a batch that came by Kafka's protocol is larger than MAX_REQUEST_BYTES where its topic allows it.
MAX_MESSAGE_BYTES = 16 << 20
#: Messages beyond this are copied one at a time, with a turn for everybody else between them.
LARGE_BYTES = 256 << 10
#: A peer that is silent this long is asked whether it lives, and has as long again to answer.
KEEPALIVE_MS = 30_000
#: Clients may ask as often as this, also between calls.
MIN_CLIENT_PING_MS = 10_000

#: `tidelog.grpc.max.connections` where nothing is configured: calls of a further connection are refused.
MAX_CONNECTIONS = 1024
#: Connections beyond it whose calls learn why; one more is closed at once.
REFUSED_CONNECTIONS = 32
#: Of one connection; its further calls wait in the client.
MAX_STREAMS_PER_CONNECTION = 1024
#: Calls under way, of all connections; one more is refused.
MAX_CALLS = 2048
#: Streams that produce, of all connections; one more is refused.
MAX_PRODUCE_STREAMS = 128
#: Calls of `Records.Read`, of all connections; one more is refused. Each may hold a message that waits for room.
MAX_RECORD_READS = 128
#: Records of one request of `Records.Send`.
MAX_SENT_RECORDS = 10_000
#: Partitions of all reads that wait, and of one.
MAX_FOLLOWED = 100_000
MAX_FETCH_PARTITIONS = 1_000

#: What a call's sender may be ahead of the node, in bytes: a message that the node waits for may be larger.
SERVER_WINDOW_BYTES = 128 << 10
#: What the node may be ahead of a client. gRPC would let it grow with the speed of the link: on loopback to tens of
#: megabytes for each stream that nobody reads.
CLIENT_WINDOW_BYTES = 4 << 20

REQUESTS_BYTES = 256 << 20
PRODUCE_STREAMS_BYTES = MAX_PRODUCE_STREAMS * MAX_REQUEST_BYTES
WINDOWS_BYTES = MAX_CALLS * SERVER_WINDOW_BYTES
ANSWERS_BYTES = 256 << 20

Options = tuple[tuple[str, int], ...]

_BOTH_ENDS: Options = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.bdp_probe", 0),
)
SERVER_OPTIONS: Options = (
    *_BOTH_ENDS,
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.http2.lookahead_bytes", SERVER_WINDOW_BYTES),
    ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_CLIENT_PING_MS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_CLIENT_PING_MS),
    # With SO_REUSEPORT a second node would share the port in silence, and half of its calls.
    ("grpc.so_reuseport", 0),
)


def server_options(connections: int) -> Options:
    """Of a server that serves so many connections."""
    return (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", connections + REFUSED_CONNECTIONS))


CLIENT_OPTIONS: Options = (
    *_BOTH_ENDS,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.lookahead_bytes", CLIENT_WINDOW_BYTES),
    ("grpc.http2.max_pings_without_data", 0),
    # A node that restarts is back within seconds; gRPC's own pause between attempts grows to two minutes.
    # What an attempt to connect may take at least: gRPC names it so, and gives up sooner than a far or busy node answers.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Retries are ours: a batch sent twice must bear its sequence, and the caller must know.
    ("grpc.enable_retries", 0),
)
