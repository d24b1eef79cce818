"""`recsys serve`: a model over HTTP and gRPC, compatible with TensorFlow Serving, and a page.

service         the process: sockets, signals, the watcher of new versions
app             all routes together, the page, and the checks before them
tf_serving      the REST API of TensorFlow Serving
open_inference  the Open Inference protocol, over REST and gRPC
grpc_server     the gRPC services
page_api        the JSON API behind the page
pool            the versions that are loaded, and their state
predictor       requests to signatures, whatever their protocol
tensors         values of requests as arrays, and arrays as JSON
micro_batcher   a bounded queue before a few threads; requests that wait are answered together
limits          limits of requests
protocol        slow and long headers
errors          errors with an HTTP status
prometheus      what Prometheus reads

`recsys.serving.retriever` answers. Only requests of gRPC import TensorFlow here.
"""
