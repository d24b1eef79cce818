# Functions of flink/local.sh and spark/local.sh, which source this file.
set -eu

usage="usage: $0 start FOLDER | stop FOLDER"
action=${1:?$usage} folder=${2:?$usage}
pool_port=${POOL_PORT:-50000} job_port=${JOB_PORT:-8099}

# Opens the packages of Java 17 that the engines reach by reflection.
opens=--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED
for package in java.lang java.lang.invoke java.lang.reflect java.net java.io java.nio java.text \
  java.time java.util java.util.concurrent java.util.concurrent.atomic java.util.concurrent.locks \
  sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar; do
  opens="$opens --add-opens=java.base/$package=ALL-UNNAMED"
done
# Jobs of seconds gain more from quick compilation than from the best code.
java_options="$opens -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError"
java_options="$java_options -Dorg.slf4j.simpleLogger.showDateTime=true"
java_options="$java_options -Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"

stop_engine() {
  [ -f "$folder/pids" ] || return 0
  pids=$(cut -d' ' -f1 "$folder/pids")
  kill $pids 2> /dev/null || true
  for _ in $(seq 20); do
    kill -0 $pids 2> /dev/null || break
    sleep 1
  done
  kill -9 $pids 2> /dev/null || true
  rm -f "$folder/pids"
}

# Prints what is missing, and ends.
need() {
  for program in "$@"; do
    command -v "$program" > /dev/null || missing="${missing-} $program"
  done
  python -c 'import apache_beam, recsys' 2> /dev/null ||
    missing="${missing-} python-with-recsys[pipeline]"
  [ -z "${missing-}" ] || { echo "$0: missing on PATH:$missing" >&2; exit 1; }
}

# Fetches the jars of a pom.xml beside the script, and compares their checksums.
fetch_jars() {
  if [ ! -d "$jars" ]; then
    mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$jars"
  fi
  (cd "$jars" && sha256sum --quiet --strict -c "$here/jars.sha256")
}

# Starts a program in the background: its log's name, then its words.
run() {
  name=$1
  shift
  nohup "$@" > "$folder/$name.log" 2>&1 &
  echo "$! $name" >> "$folder/pids"
}

# Waits for a port on this machine.
wait_for() {
  for _ in $(seq "${START_TIMEOUT_S:-180}"); do
    if (exec 3<> "/dev/tcp/localhost/$2") 2> /dev/null; then return; fi
    sleep 1
  done
  echo "$0: $1 doesn't answer on port $2: see $folder/$1.log" >&2
  stop_engine
  exit 1
}

if [ "$action" = stop ]; then
  stop_engine
  exit
fi
[ "$action" = start ] || { echo "$usage" >&2; exit 2; }
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
stop_engine
# Beam sends all jars of its class path to the engine with each job, except for those with this
# name in their path. All processes have them already.
jars=$folder/gradle/wrapper
need java mvn python sha256sum
fetch_jars
