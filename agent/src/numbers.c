#include "numbers.h"

#include <stdlib.h>

#include "archive.h"

static struct number *slot_of(const struct numbers *numbers, uint64_t inode) {
    size_t mask = numbers->room - 1;
    size_t at = (size_t)(inode * UINT64_C(0x9E3779B97F4A7C15) >> 20) & mask;
    while (numbers->slots[at].used && numbers->slots[at].inode != inode) at = (at + 1) & mask;
    return &numbers->slots[at];
}

static bool grow(struct numbers *numbers) {
    struct numbers old = *numbers;
    numbers->room = old.room == 0 ? 1024 : old.room * 2;
    numbers->slots = calloc(numbers->room, sizeof *numbers->slots);
    if (numbers->slots == NULL) {
        *numbers = old;
        return false;
    }
    for (size_t i = 0; i < old.room; i++) {
        if (old.slots[i].used) *slot_of(numbers, old.slots[i].inode) = old.slots[i];
    }
    free(old.slots);
    return true;
}

struct number *numbers_at(struct numbers *numbers, uint64_t inode) {
    if (numbers->count * 2 >= numbers->room && !grow(numbers)) return NULL;
    struct number *found = slot_of(numbers, inode);
    if (found->used) return found;
    if (numbers->count == ARCHIVE_NUMBERS_MAX) return NULL;
    numbers->count++;
    *found = (struct number){.inode = inode, .used = true};
    return found;
}

uint32_t numbers_give(struct numbers *numbers, struct number *number) {
    if (number->value == 0) number->value = ++numbers->given;
    return number->value;
}
