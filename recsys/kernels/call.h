/* What every kernel shares: the call that XLA makes, threads, scratch memory.

   Plain C over XLA's C API (xla/ffi/api/c_api.h), so that any C compiler does. A
   kernel is a function body behind RECSYS_HANDLER(name), which __init__.py registers as the FFI
   target "recsys_<name>" for the platform cpu:

       RECSYS_HANDLER(double_it) {
         const XLA_FFI_Buffer *x = recsys_arg(frame, 0);
         ...
         return NULL;                      // or recsys_fail(frame, "why")
       }

   Each <stem>.c except call.c also defines RECSYS_SELF_CHECK(<stem>): it computes
   something tiny with a known answer and returns 0 if it came out right. The function's
   name ends with RECSYS_VARIANT, which the build defines: an object that was compiled for
   another kind of processor is missed when the library is loaded. */

#ifndef RECSYS_CALL_H_
#define RECSYS_CALL_H_

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "xla/ffi/api/c_api.h"

#define RECSYS_EXPORT __attribute__((visibility("default")))
#define RECSYS_INLINE static inline __attribute__((always_inline))

#define RECSYS_HANDLER(name)                                          \
  static XLA_FFI_Error *name##_execute(XLA_FFI_CallFrame *frame);     \
  RECSYS_EXPORT XLA_FFI_Error *recsys_##name(XLA_FFI_CallFrame *frame) { \
    if (recsys_is_query(frame)) return recsys_answer_query(frame);    \
    return name##_execute(frame);                                     \
  }                                                                   \
  static XLA_FFI_Error *name##_execute(XLA_FFI_CallFrame *frame)

#define RECSYS_SELF_CHECK(stem) RECSYS_SELF_CHECK_OF(stem, RECSYS_VARIANT)
#define RECSYS_SELF_CHECK_OF(stem, variant) RECSYS_SELF_CHECK_NAMED(stem, variant)
#define RECSYS_SELF_CHECK_NAMED(stem, variant) \
  RECSYS_EXPORT int recsys_##stem##_self_check_##variant(void)

/* XLA asks each handler for its version before it ever calls it. */
int recsys_is_query(const XLA_FFI_CallFrame *frame);
XLA_FFI_Error *recsys_answer_query(XLA_FFI_CallFrame *frame);

XLA_FFI_Error *recsys_fail(XLA_FFI_CallFrame *frame, const char *message);

/* Arguments and results. No caller is trusted: a kernel reads an array only after
   recsys_check found the numbers of arrays, and recsys_expect the array's type and sizes. */
XLA_FFI_Error *recsys_check(XLA_FFI_CallFrame *frame, int64_t n_args, int64_t n_rets);

RECSYS_INLINE const XLA_FFI_Buffer *recsys_arg(const XLA_FFI_CallFrame *frame, int64_t i) {
  return (const XLA_FFI_Buffer *)frame->args.args[i];
}

RECSYS_INLINE const XLA_FFI_Buffer *recsys_ret(const XLA_FFI_CallFrame *frame, int64_t i) {
  return (const XLA_FFI_Buffer *)frame->rets.rets[i];
}

/* What an array must be: its type, its rank, and its sizes, of which RECSYS_ANY may be any. */
enum { RECSYS_ANY = -1 };
typedef struct {
  const char *name;
  const XLA_FFI_Buffer *buffer;
  XLA_FFI_DataType dtype;
  int64_t rank;
  int64_t dims[2];
} RecsysArray;

/* Returns the error that names the first of `n` arrays that isn't as it must be; NULL if all are. */
XLA_FFI_Error *recsys_expect(XLA_FFI_CallFrame *frame, const RecsysArray *arrays, int n);

/* Returns dimension `axis` of `buffer`; -2, which no array has, if its rank is lower. */
RECSYS_INLINE int64_t recsys_dim(const XLA_FFI_Buffer *buffer, int64_t axis) {
  return axis < buffer->rank ? buffer->dims[axis] : -2;
}

/* A table is of float32 or bfloat16. */
RECSYS_INLINE XLA_FFI_DataType recsys_table_type(const XLA_FFI_Buffer *table) {
  return table->dtype == XLA_FFI_DataType_BF16 ? XLA_FFI_DataType_BF16 : XLA_FFI_DataType_F32;
}

/* Returns the scalar attribute `name` (any number type) or `otherwise`. */
double recsys_attr(const XLA_FFI_CallFrame *frame, const char *name, double otherwise);

/* Threads. A call is a list of phases; each phase is a number of tasks that may run in
   any order and on any thread; a phase starts when the one before it is done. The
   calling thread takes part and needs nobody else: helpers come from XLA's pool if it
   has a free thread. `run` gets the phase's `context`, the task's number, and a worker
   number below recsys_workers(frame), which no other thread holds at that time.

   Results must not depend on which thread ran a task: cut the work by what is
   computed (a bag, a row), never by the number of workers. */
typedef struct {
  int64_t n_tasks;
  void (*run)(void *context, int64_t task, int worker);
} RecsysPhase;

enum { RECSYS_MAX_PHASES = 8, RECSYS_MAX_WORKERS = 64 };

/* Returns how many threads may take part in one call: 1 … RECSYS_MAX_WORKERS. */
int recsys_workers(XLA_FFI_CallFrame *frame);

/* Runs all phases to their end. `workers` at most recsys_workers(frame); 1 runs
   everything on the calling thread. `frame` may be NULL if `workers` is 1. */
void recsys_run(XLA_FFI_CallFrame *frame, int workers, const RecsysPhase *phases, int n_phases,
                void *context);

/* Scratch memory that is kept between calls, so that its pages are faulted in once.
   Aligned to 64 bytes, not cleared. Returns NULL when there is no memory. */
void *recsys_scratch_take(size_t bytes);
void recsys_scratch_give(void *memory);

/* Lowers the number of threads a call may use (tests); 0 takes the limit off. */
RECSYS_EXPORT void recsys_limit_workers(int limit);

#endif  // RECSYS_CALL_H_
