"""Plans a training: tables, shards, memory of each device, and exchanges of a step."""

from typing import TYPE_CHECKING

from recsys.system.lean_imports import lazy_contents

if TYPE_CHECKING:
    from recsys.plan.plan import Change as Change
    from recsys.plan.plan import Hosts as Hosts
    from recsys.plan.plan import HostsPlan as HostsPlan
    from recsys.plan.plan import Plan as Plan
    from recsys.plan.plan import changes as changes
    from recsys.plan.plan import make_plan as make_plan
    from recsys.plan.plan import model_spec as model_spec
    from recsys.plan.plan import with_model as with_model

_NAMES = {"recsys.plan.plan": "Change Hosts HostsPlan Plan changes make_plan model_spec with_model"}
__all__, __getattr__, __dir__ = lazy_contents(__name__, _NAMES)
