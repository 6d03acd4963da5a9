#include "reading.h"

bool reading_begin(struct volume *volume, bool changes) {
    const uint8_t *at = volume_peek(volume, ARCHIVE_HEADER);
    return at != NULL && archive_begins(at, changes) && volume_skip(volume, ARCHIVE_HEADER);
}

bool reading_next(struct volume *volume, bool changes, struct archive_record *record, size_t *used) {
    enum archive_result result = ARCHIVE_NEED_MORE;
    *used = ARCHIVE_RECORD;
    for (int i = 0; i < 3 && result == ARCHIVE_NEED_MORE; i++) {
        size_t have = *used;
        const uint8_t *at = volume_peek(volume, have);
        if (at == NULL) return false;
        result = archive_parse(at, have, record, used);
    }
    return result == ARCHIVE_READY && archive_fits(record, changes);
}

bool reading_skip(struct volume *volume, size_t used) {
    return volume_skip(volume, used + archive_padding(volume_position(volume) + used, 0));
}
