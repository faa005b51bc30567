"""The learners of `navrl bench learning`: one module each, run as `python -m _learning_peers RUN
FOLDER`.
"""
