"""Which producers may begin a transaction in a partition: those whose coordinator has said that the partition is in it.

Without it, a batch that was delayed until its transaction had ended would begin a transaction that nobody ends, and readers of
committed records would stop there for ever (KIP-890; Kafka: VerificationGuard).

Pure. Invariants: an answer of the coordinator counts for the transaction that was open when it was asked. A marker of the
producer, or a verification under a newer epoch, makes it void. The lowest sequence that was to be verified is remembered until
the transaction has begun, so that a producer that the log does not know begins with its first batch even if the verification
of that batch failed and those of later ones did not. At most MAX_VERIFICATIONS are kept, the newest.
"""

from __future__ import annotations

from storage_tiers.errors import InvalidTransactionState, OutOfOrderSequence

#: Producers of one partition that have asked for a verification and begun no transaction since.
MAX_VERIFICATIONS = 1_000


class Verification:
    """One producer's. `adds`: it speaks version 2 of transactions, where each has a new epoch and begins with sequence 0."""

    __slots__ = ("adds", "epoch", "is_verified", "lowest_sequence", "producer_id")

    def __init__(self, producer_id: int, epoch: int, sequence: int, *, adds: bool) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.adds = adds
        self.is_verified = False

    def check_first(self, sequence: int) -> None:
        """Whether the log's first batch of the producer may have this sequence. OutOfOrderSequence if others come before."""
        least = 0 if self.adds else self.lowest_sequence
        if sequence > least:
            raise OutOfOrderSequence(
                f"producer {self.producer_id} begins its transaction here with sequence {sequence}, and {least} has not come"
            )


class Verifications:
    """Of one partition, by producer id."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._of)

    def begin(self, producer_id: int, epoch: int, sequence: int, *, adds: bool) -> Verification:
        """The coordinator is about to be asked."""
        found = self._of.get(producer_id)
        if found is None or found.epoch < epoch:
            if found is None and len(self._of) >= MAX_VERIFICATIONS:
                del self._of[next(iter(self._of))]
            found = self._of[producer_id] = Verification(producer_id, epoch, sequence, adds=adds)
        elif found.epoch == epoch:
            found.lowest_sequence = min(found.lowest_sequence, sequence)
        else:
            found = Verification(producer_id, epoch, sequence, adds=adds)  # of an old instance: void from the start
        return found

    def verified(self, verification: Verification) -> None:
        """The coordinator has said yes. Without effect if the verification is void."""
        verification.is_verified = True

    def ended(self, producer_id: int) -> None:
        """The producer has written in its transaction, or a marker has ended it."""
        self._of.pop(producer_id, None)

    def check(self, producer_id: int, epoch: int) -> Verification:
        """The verification by which the producer may begin a transaction now. InvalidTransactionState if there is none."""
        found = self._of.get(producer_id)
        if found is None or not found.is_verified or found.epoch != epoch:
            raise InvalidTransactionState(
                f"the batch of producer {producer_id} belongs to no open transaction that has this partition"
            )
        return found
