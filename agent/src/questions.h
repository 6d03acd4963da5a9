/* Requests that are answered at once, in PID 1. */
#ifndef BOX_QUESTIONS_H
#define BOX_QUESTIONS_H

#include "session.h"

enum reply_code { REPLY_DONE = 0, REPLY_MALFORMED = 1, REPLY_REFUSED = 2, REPLY_FAILED = 3 };

void question_answer(struct session *session, struct stream *stream);

#endif
