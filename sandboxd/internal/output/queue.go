package output

// queue is bytes in order of arrival, in chunks of a pool.
type queue struct {
	pool   *Pool
	chunks [][]byte
	// offset is how much of the first chunk is gone already.
	offset int
	size   int
}

// push appends what the pool has room for and returns how much that was. An empty queue gets one chunk in any case,
// if it insists.
func (q *queue) push(data []byte, insist bool) int {
	stored := 0
	for stored < len(data) {
		last := len(q.chunks) - 1
		if last < 0 || len(q.chunks[last]) == cap(q.chunks[last]) {
			chunk := q.pool.take(insist && last < 0)
			if chunk == nil {
				break
			}
			q.chunks = append(q.chunks, chunk)
			last++
		}
		chunk := q.chunks[last]
		taken := copy(chunk[len(chunk):cap(chunk)], data[stored:])
		q.chunks[last] = chunk[:len(chunk)+taken]
		stored += taken
	}
	q.size += stored
	return stored
}

// pull moves the oldest bytes into the buffer.
func (q *queue) pull(buffer []byte) int {
	moved := 0
	for moved < len(buffer) && q.size > 0 {
		taken := copy(buffer[moved:], q.chunks[0][q.offset:])
		moved += taken
		q.drop(taken)
	}
	return moved
}

// drop forgets the oldest bytes.
func (q *queue) drop(count int) {
	for count > 0 && q.size > 0 {
		gone := min(count, len(q.chunks[0])-q.offset)
		count -= gone
		q.size -= gone
		if q.offset += gone; q.offset == len(q.chunks[0]) {
			q.shift()
		}
	}
}

// dropChunk forgets the oldest chunk, so that its memory is free, and returns how many bytes that were.
func (q *queue) dropChunk() int {
	if len(q.chunks) == 0 {
		return 0
	}
	gone := len(q.chunks[0]) - q.offset
	q.size -= gone
	q.shift()
	return gone
}

func (q *queue) shift() {
	q.pool.give(q.chunks[0])
	q.chunks[0] = nil
	q.chunks = q.chunks[1:]
	q.offset = 0
}

func (q *queue) clear() {
	for len(q.chunks) > 0 {
		q.dropChunk()
	}
}
