"""The core as typing Protocols over frozen values, split by concern. The gateway and the gRPC servicers call nothing else.

Within a process they hold the core object itself; across processes they hold a remote object with the same methods. Every
method is either `async`, or returns `Ready[T]`: the value if it is known at once, otherwise a future. So the hot path costs
neither a task nor a turn of the loop.
"""
