"""Runs the ingestion on a Dask cluster of two processes; prints what the benchmark prints."""

from dask.distributed import LocalCluster

from benchmarks.ingest import ours
from benchmarks.measure import answer


def main(file: str, out: str, **_: object) -> object:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        beam = [
            "--runner=apache_beam.runners.dask.dask_runner.DaskRunner",
            f"--dask_client_address={cluster.scheduler_address}",
            "--dask_partition_size=1",
        ]
        return ours(file, out, beam)


if __name__ == "__main__":
    answer(main)
