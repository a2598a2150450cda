"""Which weights a run's actors get, and when: between the learner, the mailbox and the actors."""
