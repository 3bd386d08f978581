"""Asks a server over HTTP for each batch; the server, another process, takes its time.

truth: network_io at fetched
"""

import multiprocessing
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch

REPAIRED = False

torch.set_num_threads(1)


class Slow(BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.02)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(bytes(range(64)))

    def log_message(self, *_):
        pass


def fetched(url):
    with urllib.request.urlopen(url) as answer:
        return list(answer.read())


def main():
    server = HTTPServer(("127.0.0.1", 0), Slow)
    url = f"http://127.0.0.1:{server.server_address[1]}/batch"
    process = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
    process.start()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    first = fetched(url)
    for _ in range(120):
        batch = torch.tensor([first if REPAIRED else fetched(url)]) / 255
        for _ in range(10):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    process.terminate()
    process.join()
    return "trained"


if __name__ == "__main__":
    print(main())
