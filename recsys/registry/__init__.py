"""Registry of the classes that configs can name: models, encoders, losses, metrics and others.

Each is a class that is registered under a name and has a typed config:

    @recsys.register_loss("my_loss")
    class MyLoss(recsys.Loss):          # a pydantic model: its fields are its config
        margin: float = 0.5

A config refers to it by `loss: my_loss` or `loss: {type: my_loss, margin: 0.2}`. Built-in
classes are in `BUILT_INS`, so that they are imported only when a config names them, and a config is
read without Keras; a decorator gives them a config that is elsewhere.

Classes of plugins are found in the modules that `plugins` in the config names, or that an
installed package declares as an entry point of the group `recsys.plugins`.
"""

from recsys.registry.built_ins import BUILT_INS as BUILT_INS
from recsys.registry.choice import Choice as Choice
from recsys.registry.choice import choice_of as choice_of
from recsys.registry.choice import modules_of as modules_of
from recsys.registry.choice import plugins_needed as plugins_needed
from recsys.registry.choice import plugins_of as plugins_of
from recsys.registry.registered import class_of as class_of
from recsys.registry.registered import config_type as config_type
from recsys.registry.registered import get as get
from recsys.registry.registered import load as load
from recsys.registry.registered import load_plugins as load_plugins
from recsys.registry.registered import name_of as name_of
from recsys.registry.registered import names as names
from recsys.registry.registered import register as register
from recsys.registry.registered import register_baseline as register_baseline
from recsys.registry.registered import register_encoder as register_encoder
from recsys.registry.registered import register_event_feature as register_event_feature
from recsys.registry.registered import register_feature as register_feature
from recsys.registry.registered import register_loss as register_loss
from recsys.registry.registered import register_metric as register_metric
from recsys.registry.registered import register_model as register_model
from recsys.registry.registered import register_row_optimizer as register_row_optimizer
from recsys.registry.registered import register_source as register_source
from recsys.registry.registered import register_task as register_task
from recsys.registry.registered import register_term as register_term
from recsys.registry.registered import registered_in as registered_in
