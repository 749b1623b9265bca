"""What can go wrong with the ledger, by name."""

from __future__ import annotations

from openclaw.exceptions import OpenClawError


class LedgerError(OpenClawError):
    """Base of everything the ledger raises about its contents."""


class LedgerVersionError(LedgerError):
    """The file was written by a newer program."""


class UnknownRecordError(LedgerError):
    """A turn, sample or session id that the ledger does not hold."""


class TransitionError(LedgerError):
    """A state change that is not in the tables of `openclaw.ledger.states`."""


class FeedbackArrivedError(LedgerError):
    """A verdict came too late: more feedback counts than it has seen."""
