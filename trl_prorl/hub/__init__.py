"""The Hub: model card, choice of files, uploads."""
