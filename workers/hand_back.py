"""How an actor leaves a message to other workers."""

from __future__ import annotations


class HandBack(Exception):
    """This worker is shutting down: the message goes back to its queue as it is, instead of being acknowledged.

    A copy would not do: where the copy was made and the acknowledgement not, the message would be there twice.
    """
