"""`recsys serve`: a model over HTTP, as TensorFlow Serving serves it, and a page for people.

refusals   what a client did wrong, with its HTTP status
limits     how much a client may ask for, in bytes, rows, seconds and requests at once
signature  what a function of a SavedModel takes and gives
tensors    nested lists of JSON to arrays
question   the body of a predict request, read
answer     the body of its answer, written
model      one loaded version, in TensorFlow
ranked     recommendations that are ranked outside of TensorFlow
item_filters  which items a query wants to see alone
work       a bounded queue before a few threads, where those who wait are answered together
joining    questions of several requests, asked as one
body       bodies read within the limits, before anything else sees them
protocol   connections of clients that send their headers too slowly, or don't read
sending    answers that nobody has read yet, limited together
metrics    what Prometheus reads
served     what is served under which name, and the state of its versions
predict    the routes of TensorFlow Serving
names      users, and items with their titles, to be found and shown
named_model  what the page needs to know of a version
wish       the body of a question of people, read
asking     questions of people, asked of the model
api        the JSON API behind the page
page       the page: static/ has its three files
schemas    what the OpenAPI page says of plain JSON
scalars    single values of JSON as TensorFlow's types
app        all routes together
run        the process: sockets, signals, the watcher of new versions

`recsys.serving.pool` keeps the versions, and `recsys.serving.pool` looks for new ones.
Nothing here but `model` imports TensorFlow.
"""
