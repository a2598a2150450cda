"""How a process is started, watched, ended and waited for; its files, locks and machine."""
