"""The core as typing Protocols over frozen values, split by concern. The gateway and the gRPC servicers call nothing else.

Within a process they hold the core object itself; across processes they hold a remote object with the same methods. A method
of the hot path returns `Ready[T]`: the value if it is known at once, otherwise a future. So the hot path costs neither a task
nor a turn of the loop. Other methods are `async`, return a future, or answer at once from memory.
"""
