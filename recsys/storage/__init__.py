"""Object stores: raw files in buckets, and roots whose home is a bucket."""
