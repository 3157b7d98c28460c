"""Memory systems under one protocol. `adaptmr.systems()` lists the names of all systems."""
from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adaptmr.systems.base import SystemNames


class _Systems(ModuleType):
    def __call__(self, group: str | None = "main") -> SystemNames:
        """Return the names of a group's systems in the order of tables, with what each does; see `known_systems`."""
        from adaptmr.systems.base import SystemNames, known_systems
        return SystemNames(known_systems(group))


sys.modules[__name__].__class__ = _Systems
