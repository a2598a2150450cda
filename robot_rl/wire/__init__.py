"""What every connection between our processes is made of: messages, addresses, keys, sockets."""
