"""``kl.controller`` and ``entropy.controller``: coefficients that follow what is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from levelhead.errors import InputError
from levelhead.objective.controllers import CONTROLLERS, Controller
from levelhead.recipe.variants import CustomVariant, as_sections, one_of


class CustomController(CustomVariant):
    """A controller of your own: a class that derives from ``levelhead.objective.controllers.Controller``."""


_SECTIONS = as_sections(CONTROLLERS, default="fixed")
FIXED: Any = _SECTIONS["fixed"](kind="fixed")
"""The section of a coefficient that never moves."""


def _of(term: str) -> Any:
    names = [name for name, variant in CONTROLLERS.items() if term in variant.controls]
    return one_of([_SECTIONS[name] for name in names], CustomController)


if TYPE_CHECKING:
    KlController = Controller | CustomController
    EntropyController = Controller | CustomController
else:
    KlController = _of("kl")
    EntropyController = _of("entropy")


def make_controller(section: Controller | CustomController, term: str, key: str) -> Controller:
    """Return the controller that a section asks for; a class of the user's own is loaded.

    Args:
        section: As a recipe holds it.
        term: ``kl`` or ``entropy``.
        key: Of the section.

    Raises:
        InputError: There is no such class, a setting does not fit it, or it moves the coefficient of another term.
    """
    if not isinstance(section, CustomController):
        return section
    controller = section.load(Controller, key)
    if term not in controller.controls:
        terms = " and ".join(sorted(controller.controls)) or "nothing"
        raise InputError(f"{section.path}: moves the coefficient of {terms}, not of {term} ({key}.path)")
    return controller
