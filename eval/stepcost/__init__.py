"""Time the stages of a training step: variants, batches, trainers, stopwatch, measurement, tables and charts."""
