"""Plans a training: tables, shards, memory of each device, and exchanges of a step."""
