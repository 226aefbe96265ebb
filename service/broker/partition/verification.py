"""Tracks the producers whose transactions the coordinator has verified for a partition. Only they may begin a transaction
there.

Without this check, a batch that was delayed until its transaction had ended would begin a transaction that never ends. Readers
of committed records would stop there for ever (KIP-890; Kafka: VerificationGuard).

Pure. Invariants: the coordinator's answer holds for the transaction that was open at the time of the request, or with version 2
of transactions for the producer's next one. A marker that ends transactions of its epoch, a verification under a newer epoch,
or the end of this node's leadership makes the answer void. The lowest sequence of the requests is remembered until the
transaction has begun. So a producer that the log does not know must begin with its first batch, even if the verification of
that batch failed and those of later batches succeeded. At most MAX_VERIFICATIONS are kept: those for which a batch waits, and
the newest of the others.
"""

from __future__ import annotations

from storage_tiers.errors import InvalidTransactionState, LogError, OutOfOrderSequence, RequestTimedOut

#: The maximum number of producers of one partition that have requested a verification and have not begun a transaction since.
MAX_VERIFICATIONS = 1_000


class Verification:
    """One producer's verification. `adds` is set for version 2 of transactions, where each transaction has a new epoch and
    begins with sequence 0. `holders` counts the batches that wait to be appended under it."""

    __slots__ = ("adds", "epoch", "holders", "is_verified", "lowest_sequence", "producer_id")

    def __init__(self, producer_id: int, epoch: int, sequence: int, *, adds: bool) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.adds = adds
        self.is_verified = False
        self.holders = 0

    def check_first(self, sequence: int) -> None:
        """Raises OutOfOrderSequence if the log's first batch of the producer must have an earlier sequence."""
        least = 0 if self.adds else self.lowest_sequence
        if sequence > least:
            raise OutOfOrderSequence(
                f"producer {self.producer_id} begins its transaction here with sequence {sequence}, but {least} has not arrived"
            )


class Verifications:
    """The verifications of one partition, by producer id."""

    __slots__ = ("_of", "refusal")

    def __init__(self) -> None:
        self._of: dict[int, Verification] = {}
        #: The error with which new transactions are refused, while the partition waits for the end of the open ones.
        self.refusal: LogError | None = None

    def __len__(self) -> int:
        return len(self._of)

    def begin(self, producer_id: int, epoch: int, sequence: int, *, adds: bool) -> Verification:
        """Called before the request to the coordinator. The caller calls `release` once its batch is appended or refused.
        Raises RequestTimedOut if batches already wait for MAX_VERIFICATIONS others, or the `refusal` if there is one."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        found = self._of.pop(producer_id, None)
        if found is None:
            self._make_room()
        if found is None or found.epoch < epoch:
            begun = kept = Verification(producer_id, epoch, sequence, adds=adds)
        elif found.epoch == epoch:
            begun = kept = found
            found.lowest_sequence = min(found.lowest_sequence, sequence)
        else:
            begun, kept = Verification(producer_id, epoch, sequence, adds=adds), found  # void: its epoch is older
        self._of[producer_id] = kept  # at the end, as the newest
        begun.holders += 1
        return begun

    def _make_room(self) -> None:
        """If the bound is reached, drops the oldest verification for which no batch waits."""
        if len(self._of) < MAX_VERIFICATIONS:
            return
        oldest = next((producer_id for producer_id, each in self._of.items() if not each.holders), None)
        if oldest is None:
            raise RequestTimedOut(
                f"{len(self._of)} producers wait for their transactions to be verified here; send again"
            )
        del self._of[oldest]

    def release(self, verification: Verification) -> None:
        """Called when a batch no longer waits to be appended under this verification."""
        verification.holders -= 1

    def clear(self) -> None:
        """Makes all verifications void: another node may lead and end transactions without this node's knowledge."""
        self._of.clear()

    def verified(self, verification: Verification) -> None:
        """Records a positive answer. Has no effect if the verification is void."""
        verification.is_verified = True

    def ended(self, producer_id: int, epoch: int) -> None:
        """Called after the producer has written in its transaction under this epoch, or a marker has ended its transactions up
        to this epoch. A verification of a later epoch stays, because the producer is beginning its next transaction."""
        found = self._of.get(producer_id)
        if found is not None and found.epoch <= epoch:
            del self._of[producer_id]

    def check(self, producer_id: int, epoch: int) -> Verification:
        """Returns the verification that lets the producer begin a transaction now. Raises InvalidTransactionState if there is
        none."""
        found = self._of.get(producer_id)
        if found is None or not found.is_verified or found.epoch != epoch:
            raise InvalidTransactionState(
                f"the batch of producer {producer_id} belongs to no open transaction that has this partition"
            )
        return found
