"""The objective: KL estimators, anchors and their coefficients, aggregation over tokens, advantages."""
