/* Huge pages for tables; see pages.c. */

#ifndef RECSYS_PAGES_H_
#define RECSYS_PAGES_H_

#include "call.h"

/* Requests huge pages for `memory` [n_bytes], whose rows are read at random in many calls. */
void recsys_ask_for_huge_pages(const void *memory, int64_t n_bytes);

#endif  // RECSYS_PAGES_H_
