#!/usr/bin/env bash
# Spark 3.5 on this machine, inside Beam's job server, with a worker pool.
#
#   deploy/spark/local.sh start FOLDER
#   recsys run CONFIG --set beam="$(cat FOLDER/beam.yaml)"
#   deploy/spark/local.sh stop FOLDER
#
# FOLDER keeps jars and logs. Ports: JOB_PORT, POOL_PORT; a cluster in place of local threads:
# SPARK_MASTER=spark://HOST:7077. `python` on PATH needs recsys with its extra `pipeline`.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../local_engine.sh"

rm -rf "$folder/tmp"
mkdir -p "$folder/tmp"
run pool python -m recsys.data.ingest.worker_pool --port "$pool_port"
run jobserver java $java_options -Xmx1g -Dspark.ui.enabled=false -Dspark.local.dir="$folder/tmp" \
  -Dspark.driver.bindAddress=127.0.0.1 -Dspark.driver.host=127.0.0.1 -cp "$jars/*" \
  org.apache.beam.runners.spark.SparkJobServerDriver \
  --spark-master-url="${SPARK_MASTER:-local[2]}" --job-port="$job_port" --artifact-port=0 \
  --expansion-port=0 --artifacts-dir="$folder/tmp"
wait_for jobserver "$job_port"
wait_for pool "$pool_port"
echo "{runner: spark, master: 'localhost:$job_port', workers: 'localhost:$pool_port'}" |
  tee "$folder/beam.yaml"
