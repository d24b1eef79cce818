"""Features of events: context of a query, and attributes of the events of a history."""

from recsys.data.event_features.feature import FOLDER as FOLDER
from recsys.data.event_features.feature import NOT_STORED as NOT_STORED
from recsys.data.event_features.feature import TIME_COLUMN as TIME_COLUMN
from recsys.data.event_features.feature import Encoded as Encoded
from recsys.data.event_features.feature import EventFeature as EventFeature
from recsys.data.event_features.feature import Graph as Graph
from recsys.data.event_features.feature import LearnedFeature as LearnedFeature
from recsys.data.event_features.feature import Side as Side
from recsys.data.event_features.feature import Value as Value
from recsys.data.event_features.feature import encode_features as encode_features
from recsys.data.event_features.feature import labels_of as labels_of
from recsys.data.event_features.feature import load_event_features as load_event_features
from recsys.data.event_features.feature import save_event_features as save_event_features
from recsys.data.event_features.feature import time_column_of as time_column_of
from recsys.data.event_features.feature import values_at as values_at
