"""Pretrained encoders, as transformers has them: what training, export and a new run's first weights ask of one."""
