/* Huge pages for tables; see pages.c. */

#ifndef RECSYS_PAGES_H_
#define RECSYS_PAGES_H_

#include "call.h"

/* Tells that rows of `memory` [n_bytes] are used at random, now and in later calls. */
void recsys_ask_for_huge_pages(const void *memory, int64_t n_bytes);

#endif  // RECSYS_PAGES_H_
