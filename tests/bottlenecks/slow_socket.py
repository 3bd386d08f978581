"""Asks a slow server for the rate of each step, over a connection that stays open.

truth: network_io at Rates.next
"""

import multiprocessing
import socket
import time

import torch

REPAIRED = False

torch.set_num_threads(1)


def answer(listener):
    connection, _ = listener.accept()
    with connection:
        while connection.recv(16):
            time.sleep(0.02)
            connection.sendall(b"0.0010")


class Rates:
    def __init__(self, port):
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.known = None

    def next(self):
        if self.known is None or not REPAIRED:
            self.connection.sendall(b"rate")
            self.known = float(self.connection.recv(16))
        return self.known


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = multiprocessing.get_context("fork").Process(target=answer, args=(listener,), daemon=True)
        server.start()
        rates = Rates(listener.getsockname()[1])
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(150):
            optimizer.param_groups[0]["lr"] = rates.next()
            for _ in range(10):
                optimizer.zero_grad()
                model(torch.ones(32, 64)).square().mean().backward()
                optimizer.step()
        rates.connection.close()
        server.join()
    print("trained")
