"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Finding:
    """A rule, how many things it was held against, and what broke it."""

    rule: str
    checked: int = 0
    wrong: list[str] = field(default_factory=list)
    #: Worth knowing, but nobody's fault.
    noted: list[str] = field(default_factory=list)

    def require(self, holds: object, what: str) -> None:
        """Hold the rule against one thing; `what` names it."""
        self.checked += 1
        if not holds:
            self.wrong.append(what)
