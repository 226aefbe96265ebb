"""A broker is fenced after its silence or soon after the end of its stream, and never because of an older registration."""

from __future__ import annotations

import pytest

from service.controller.contacts import STREAM_GRACE_S, Contact, Contacts

SESSION_S = 9.0
ONE, AGAIN, TWO = Contact(1, 1), Contact(1, 2), Contact(2, 1)


@pytest.fixture
def contacts() -> Contacts:
    return Contacts(SESSION_S)


def deadline(contacts: Contacts) -> float:
    """The first tenth of a second at which a broker is overdue; the contacts then forget that broker."""
    return next(each / 10 for each in range(10_000) if contacts.overdue(each / 10))


def test_a_silent_broker_is_overdue_once_after_its_session(contacts: Contacts) -> None:
    contacts.opened(ONE, 0.0)
    contacts.opened(TWO, 0.0)
    contacts.heard(TWO, 5.0)
    assert contacts.overdue(SESSION_S - 0.1) == []
    assert contacts.overdue(SESSION_S) == [ONE]
    assert contacts.overdue(SESSION_S) == []
    assert deadline(contacts) == 5.0 + SESSION_S


def test_the_end_of_a_stream_shortens_the_session(contacts: Contacts) -> None:
    contacts.opened(ONE, 0.0)
    contacts.ended(ONE, 1.0)
    assert deadline(contacts) == 1.0 + STREAM_GRACE_S


def test_another_stream_lengthens_the_session_again(contacts: Contacts) -> None:
    contacts.opened(ONE, 0.0)
    contacts.ended(ONE, 1.0)
    contacts.opened(ONE, 1.5)
    assert deadline(contacts) == 1.5 + SESSION_S


def test_a_stream_that_is_replaced_may_end_afterwards(contacts: Contacts) -> None:
    contacts.opened(ONE, 0.0)
    contacts.opened(ONE, 1.0)
    contacts.ended(ONE, 1.5)
    assert contacts.overdue(1.5 + STREAM_GRACE_S) == []
    contacts.ended(ONE, 2.5)
    assert deadline(contacts) == 2.5 + STREAM_GRACE_S


def test_an_older_registration_changes_nothing(contacts: Contacts) -> None:
    contacts.opened(ONE, 0.0)
    contacts.opened(AGAIN, 1.0)
    contacts.heard(ONE, 5.0)
    contacts.opened(ONE, 5.0)
    contacts.ended(ONE, 5.0)
    assert contacts.overdue(0.9 + SESSION_S) == []
    assert contacts.overdue(1.0 + SESSION_S) == [AGAIN]


def test_a_silence_that_began_before_the_stream_ended_is_not_lengthened(contacts: Contacts) -> None:
    contacts.opened(ONE, 0.0)
    contacts.ended(ONE, SESSION_S - 0.1)
    assert contacts.overdue(SESSION_S) == [ONE]


def test_a_new_controller_gives_its_brokers_a_whole_session(contacts: Contacts) -> None:
    contacts.begin([ONE, TWO], 100.0)
    contacts.opened(ONE, 105.0)
    assert contacts.overdue(99.9 + SESSION_S) == []
    assert contacts.overdue(100.0 + SESSION_S) == [TWO]
    contacts.ended(TWO, 120.0)
    assert contacts.overdue(105.0 + SESSION_S) == [ONE]
    assert contacts.overdue(1e9) == []
