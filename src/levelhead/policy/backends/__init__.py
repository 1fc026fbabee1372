"""How a policy's model is run: one backend a way, chosen by what the model and the device allow."""
