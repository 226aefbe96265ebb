"""Bounds and heartbeats of a channel, named once for both of its ends. Importing this loads no gRPC."""

from __future__ import annotations

#: Above Kafka's default of 1 MiB a batch by far, and a bound on what one message may cost.
MAX_MESSAGE_BYTES = 64 << 20
#: A peer that is silent this long is asked whether it lives, and has as long again to answer.
KEEPALIVE_MS = 30_000
#: Clients may ask as often as this, also between calls.
MIN_CLIENT_PING_MS = 10_000
MAX_STREAMS_PER_CONNECTION = 1024
#: What a stream's sender may be ahead of its receiver, in bytes. gRPC would let it grow with the speed of the link: on
#: loopback to tens of megabytes for each stream that nobody reads.
STREAM_WINDOW_BYTES = 4 << 20

Options = tuple[tuple[str, int], ...]

_BOTH_ENDS: Options = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.lookahead_bytes", STREAM_WINDOW_BYTES),
    ("grpc.http2.bdp_probe", 0),
)
SERVER_OPTIONS: Options = (
    *_BOTH_ENDS,
    ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_CLIENT_PING_MS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_CLIENT_PING_MS),
    # With SO_REUSEPORT a second node would share the port in silence, and half of its calls.
    ("grpc.so_reuseport", 0),
)
CLIENT_OPTIONS: Options = (
    *_BOTH_ENDS,
    ("grpc.http2.max_pings_without_data", 0),
    # A node that restarts is back within seconds; gRPC's own pause between attempts grows to two minutes.
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Retries are ours: a batch sent twice must bear its sequence, and the caller must know.
    ("grpc.enable_retries", 0),
)
