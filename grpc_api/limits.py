"""Bounds and keepalives of a channel, shared by both ends, and the bounds on a node's memory for its callers.

That memory is at most the sum of the following, each of which only hostile callers reach:

    requests in progress REQUESTS_BYTES          received in part or whole, and unfinished
    produce streams      PRODUCE_STREAMS_BYTES   one incomplete message each
    windows              WINDOWS_BYTES           sent to calls that have stopped reading
    answers              ANSWERS_BYTES           made, and not yet read by their callers
    partitions           MAX_FOLLOWED            of waiting reads, some hundred bytes each
    record reads         MAX_RECORD_READS        one message each that waits for memory: 2 MiB or one record
    lost ends            MAX_LOWERINGS           of calls that lower offsets, some megabytes each
    inflated batches     INFLATED_BYTES          kept by record reads between two messages

Importing this loads no gRPC.
"""

from __future__ import annotations

#: Largest request, gRPC's own default. gRPC copies a message in one go, and serves no other call meanwhile.
MAX_REQUEST_BYTES = 4 << 20
#: Largest response: a batch produced through Kafka's protocol may exceed MAX_REQUEST_BYTES if its topic's config allows it.
MAX_MESSAGE_BYTES = 16 << 20
#: Larger messages are copied one at a time, and other calls run between them.
LARGE_BYTES = 256 << 10
#: A peer that is silent for this long is pinged, and must answer within the same time.
KEEPALIVE_MS = 30_000
#: Shortest interval between a client's pings, also without calls.
MIN_CLIENT_PING_MS = 10_000

#: Default of `tidelog.grpc.max.connections`: calls of a further connection are refused.
MAX_CONNECTIONS = 1024
#: Connections beyond that number whose calls are refused with a reason; further connections are closed at once.
REFUSED_CONNECTIONS = 32
#: Concurrent calls of one connection; further calls wait in the client.
MAX_STREAMS_PER_CONNECTION = 1024
#: Concurrent calls of all connections; one more is refused.
MAX_CALLS = 2048
#: Produce streams of all connections; one more is refused.
MAX_PRODUCE_STREAMS = 128
#: Calls of `Records.Read` of all connections; one more is refused. Each may hold a message that waits for memory.
MAX_RECORD_READS = 128
#: Calls that wait for members of consumer groups, of all connections; one more is refused. Below MAX_STREAMS_PER_CONNECTION, so
#: that members behind one channel cannot keep its heartbeats waiting.
MAX_JOINS = 512
#: Calls of `Groups.LowerOffsets` of all connections; one more is refused. Each may hold some megabytes of ends while it visits
#: the groups. Brokers ask again later.
MAX_LOWERINGS = 16
#: Records of one request of `Records.Send`.
MAX_SENT_RECORDS = 10_000
#: Partitions of all waiting reads together, and of one read.
MAX_FOLLOWED = 100_000
MAX_FETCH_PARTITIONS = 1_000

#: Bytes that a call may send before the node reads them; a message that the node waits for may be larger.
SERVER_WINDOW_BYTES = 128 << 10
#: Bytes that the node may send before a client reads them. gRPC would let the window grow with the speed of the link: on
#: loopback to tens of megabytes for each unread stream.
CLIENT_WINDOW_BYTES = 4 << 20

REQUESTS_BYTES = 256 << 20
PRODUCE_STREAMS_BYTES = MAX_PRODUCE_STREAMS * MAX_REQUEST_BYTES
WINDOWS_BYTES = MAX_CALLS * SERVER_WINDOW_BYTES
ANSWERS_BYTES = 256 << 20
#: Bytes of inflated batches and of their compressed forms. A batch of MAX_MESSAGE_BYTES may inflate to 16 times its size; one
#: such batch fits.
INFLATED_BYTES = 17 * MAX_MESSAGE_BYTES

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
    # With SO_REUSEPORT a second node would silently share the port and take half of the calls.
    ("grpc.so_reuseport", 0),
)


def server_options(connections: int) -> Options:
    """Options of a server that serves at most `connections` connections."""
    return (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", connections + REFUSED_CONNECTIONS))


CLIENT_OPTIONS: Options = (
    *_BOTH_ENDS,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.lookahead_bytes", CLIENT_WINDOW_BYTES),
    ("grpc.http2.max_pings_without_data", 0),
    # A node that restarts is back within seconds; gRPC's own pause between attempts grows to two minutes.
    # Despite its name, min_reconnect_backoff_ms is the shortest timeout of a connection attempt: without it a distant
    # or busy node has too little time.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # The SDK retries itself: a repeated batch must have the same sequence, and the caller must know of the retry.
    ("grpc.enable_retries", 0),
)
