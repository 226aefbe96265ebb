"""The peak memory of a process, from Linux's /proc."""

from __future__ import annotations


def peak_resident_bytes(process_id: int | None = None) -> int:
    """The peak memory of a process since its exec, by default of this one; 0 if there is no such process, or no /proc.
    getrusage(2) would include the peak from before exec, which is the parent's."""
    try:
        with open(f"/proc/{process_id or 'self'}/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return 0
