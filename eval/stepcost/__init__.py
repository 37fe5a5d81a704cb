"""What a step costs, part by part: arms, batches, trainers, stopwatch, measuring, tables and charts."""
