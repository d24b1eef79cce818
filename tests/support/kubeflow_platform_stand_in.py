"""Runs a compiled job as Kubeflow's driver would, on this machine, without Kubeflow.

Inputs of a step are made only from the job, and a step's command is run as it is there. Buckets are
folders under the mount.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from pipelines import kubeflow, kubeflow_entrypoint


class Job:
    """One run of a compiled job.

    Args:
        job: The job.
        mount: Folder of the buckets; the environment names it as well.
        name: Name of the run.
        world: The artifacts of all runs so far.
        apart: Tasks that run in a process of their own.
    """

    def __init__(self, job, mount, name, world, apart=()):
        self.spec = job["pipelineSpec"]
        self.root = job["runtimeConfig"]["gcsOutputDirectory"]
        self.mount, self.name, self.world = Path(mount), name, world
        self.apart = apart
        self.outputs = {}

    def run(self):
        """Runs all tasks, each after those that it depends on."""
        tasks = dict(self.spec["root"]["dag"]["tasks"])
        while tasks:
            ready = [name for name, task in tasks.items() if not needed(task) & set(tasks)]
            assert ready, f"the tasks {sorted(tasks)} wait for each other"
            for name in ready:
                self._task(name, tasks.pop(name))
        return self.outputs

    def _task(self, name, task):
        component = self.spec["components"][task["componentRef"]["name"]]
        executor = self.spec["deploymentSpec"]["executors"][component["executorLabel"]]
        inputs = {
            key: self._artifacts(given["taskOutputArtifact"])
            for key, given in task.get("inputs", {}).get("artifacts", {}).items()
        }
        if "resolver" in executor:
            queries = executor["resolver"]["outputArtifactQueries"]
            for key, query in queries.items():
                self.outputs[name, key] = self._resolved(query["filter"], inputs)
            return
        said = self._container(name, executor["container"], self._invocation(name, task, inputs))
        for key, some in said["artifacts"].items():
            kind = component["outputDefinitions"]["artifacts"][key]["artifactType"]
            made = [{**one, "type": kind} for one in some["artifacts"]]
            self.outputs[name, key] = made
            self.world += made

    def _artifacts(self, given):
        return self.outputs[given["producerTask"], given["outputArtifactKey"]]

    def _invocation(self, name, task, inputs):
        component = self.spec["components"][task["componentRef"]["name"]]
        folder = f"{self.root}/42/{self.name}/{name}_7"
        made = component["outputDefinitions"]["artifacts"]
        parameters = {
            key: self._value(value["runtimeValue"]["constant"])
            for key, value in task["inputs"].get("parameters", {}).items()
        }
        return {
            "inputs": {
                # Inputs without an artifact are missing.
                "artifacts": {key: {"artifacts": some} for key, some in inputs.items() if some},
                "parameterValues": parameters,
            },
            "outputs": {
                "artifacts": {
                    key: {
                        "artifacts": [
                            {
                                "name": f"projects/42/artifacts/{self.name}-{name}-{key}",
                                "uri": f"{folder}/{key}",
                                "type": one["artifactType"],
                            }
                        ]
                    }
                    for key, one in made.items()
                },
                "outputFile": f"{folder}/executor_output.json",
            },
        }

    def _value(self, constant):
        if not isinstance(constant, str):
            return constant
        return constant.replace("{{$.pipeline_job_name}}", self.name)

    def _container(self, name, container, invocation):
        command = tuple(container["command"])
        words = [json.dumps(invocation) if one == "{{$}}" else one for one in container["args"]]
        if name in self.apart:
            assert command[0] == "python"
            done = subprocess.run(
                [sys.executable, *command[1:], *words], check=False, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{name}: {done.stderr[-3000:]}"
        else:
            # The same without another import of TFX.
            assert command == kubeflow.ENTRYPOINT
            kubeflow_entrypoint.main(words)
        file = invocation["outputs"]["outputFile"].removeprefix("gs://")
        return json.loads((self.mount / file).read_text())

    def _resolved(self, query, inputs):
        """Returns the latest artifact that matches a query, or None."""
        wanted = dict(re.findall(r"([\w.]+)=(\S+)", query))
        found = [one for one in self.world if title(one) == wanted["schema_title"].strip('"')]
        if "name" in wanted:
            if not inputs["input"]:
                return []
            name = inputs["input"][0]["metadata"]["current_model_id"]
            found = [one for one in found if one["name"] == name]
        if "metadata.blessed.number_value" in wanted:
            value = float(wanted["metadata.blessed.number_value"])
            found = [one for one in found if one["metadata"].get("blessed") == value]
        return found[-1:]


def needed(task):
    """Returns the names of the tasks that a task comes after."""
    inputs = task.get("inputs", {}).get("artifacts", {}).values()
    return {
        *task.get("dependentTasks", ()),
        *(one["taskOutputArtifact"]["producerTask"] for one in inputs),
    }


def title(artifact):
    """Returns the title of an artifact's type."""
    return re.search(r"title: (\S+)", artifact["type"]["instanceSchema"])[1]
