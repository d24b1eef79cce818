"""TFX's launcher, which starts a step once there is room for what it will write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfx.orchestration.portable import launcher

from pipelines.room import check_room


class RoomyLauncher(launcher.Launcher):
    """Looks at the disk before a step runs; a cached step needs no room."""

    def _run_executor(self, execution_info: Any) -> Any:
        step = self._pipeline_node.node_info.id
        root = Path(self._pipeline_runtime_spec.pipeline_root.field_value.string_value)
        check_room(step, execution_info.input_dict, root, execution_info.exec_properties)
        return super()._run_executor(execution_info)
