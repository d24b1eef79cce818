#!/usr/bin/env bash
# Flink 1.19 on this machine: a JobManager, two TaskManagers, Beam's job server and worker pool.
#
#   deploy/flink/local.sh start FOLDER
#   recsys run CONFIG --set beam="$(cat FOLDER/beam.yaml)"
#   deploy/flink/local.sh stop FOLDER
#
# FOLDER keeps jars and logs. Ports: JOB_PORT, REST_PORT, RPC_PORT, POOL_PORT; number of
# TaskManagers: TASK_MANAGERS; ADDRESS of this machine for TaskManagers on others. `python` on PATH
# needs recsys with its extra `pipeline`.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../local_engine.sh"

rest_port=${REST_PORT:-8081} task_managers=${TASK_MANAGERS:-2} address=${ADDRESS:-localhost}
rm -rf "$folder/tmp" # Flink would check the files of earlier jobs.
mkdir -p "$folder/conf" "$folder/tmp"
cat > "$folder/conf/config.yaml" << END
jobmanager.rpc.address: $address
jobmanager.rpc.port: ${RPC_PORT:-6123}
jobmanager.bind-host: $address
jobmanager.memory.process.size: 1024m
rest.port: $rest_port
rest.bind-address: localhost
taskmanager.host: $address
taskmanager.bind-host: $address
# A slot of each TaskManager is used; the other one takes the work of a lost TaskManager.
taskmanager.numberOfTaskSlots: 2
cluster.evenly-spread-out-slots: true
taskmanager.cpu.cores: 1
parallelism.default: $task_managers
io.tmp.dirs: $folder/tmp
# Without Flink's own scripts, each part of a TaskManager's memory is named.
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.task.heap.size: 384m
taskmanager.memory.task.off-heap.size: 0b
taskmanager.memory.managed.size: 128m
taskmanager.memory.network.min: 256m
taskmanager.memory.network.max: 256m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
# StatisticsGen has many shuffles: small buffers, so that 256 MB are enough.
taskmanager.memory.segment-size: 8kb
# Attempts last for longer than the heartbeat, until which tasks are sent to a lost TaskManager.
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 10
restart-strategy.fixed-delay.delay: 5s
heartbeat.interval: 2000
heartbeat.timeout: 20000
END
export FLINK_CONF_DIR="$folder/conf"
flink=org.apache.flink.runtime
run jobmanager java $java_options -Xmx512m -cp "$jars/*" \
  $flink.entrypoint.StandaloneSessionClusterEntrypoint \
  --configDir "$folder/conf" --executionMode cluster
run pool python -m recsys.data.ingest.worker_pool --port "$pool_port"
wait_for jobmanager "$rest_port"
for number in $(seq "$task_managers"); do
  run "taskmanager-$number" java $java_options -Xmx512m -XX:MaxDirectMemorySize=512m \
    -cp "$jars/*" $flink.taskexecutor.TaskManagerRunner \
    --configDir "$folder/conf" -D taskmanager.resource-id="tm-$number"
done
run jobserver java $java_options -Xmx512m -cp "$jars/*" \
  org.apache.beam.runners.flink.FlinkJobServerDriver --flink-master="localhost:$rest_port" \
  --flink-conf-dir="$folder/conf" --job-port="$job_port" --artifact-port=0 --expansion-port=0 \
  --artifacts-dir="$folder/tmp"
wait_for jobserver "$job_port"
wait_for pool "$pool_port"
echo "{runner: flink, master: 'localhost:$job_port', workers: 'localhost:$pool_port'," \
  "cluster: 'localhost:$rest_port'}" | tee "$folder/beam.yaml"
