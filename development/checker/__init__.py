"""What must hold of the log, of answers, tables and pods, said a second time: imports nothing of the product."""
