"""Plans a training: tables, shards, bytes of each device, and what each step exchanges."""

from recsys.plan.plan import Change as Change
from recsys.plan.plan import Hosts as Hosts
from recsys.plan.plan import HostsPlan as HostsPlan
from recsys.plan.plan import Plan as Plan
from recsys.plan.plan import changes as changes
from recsys.plan.plan import make_plan as make_plan
from recsys.plan.plan import with_model as with_model
