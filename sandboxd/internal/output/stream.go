package output

import (
	"io"
	"sync"
)

// Stream keeps the first and the last half of the limit. The first half is there to be sent as it comes; the last is
// known only at the end. What lies between is counted and forgotten.
type Stream struct {
	mutex sync.Mutex
	wake  func()

	head     queue
	headRoom int
	tail     queue
	tailRoom int
	dropped  int64
	closed   bool
	// deaf streams are read on, so that whoever writes isn't stopped, and keep nothing.
	deaf bool
}

// NewStream makes one that calls wake when there is something to send, or nothing will come any more.
func NewStream(pool *Pool, limit int, wake func()) *Stream {
	return &Stream{
		wake:     wake,
		head:     queue{pool: pool},
		headRoom: limit - limit/2,
		tail:     queue{pool: pool},
		tailRoom: limit / 2,
	}
}

// Fill reads until the end, or until an error, which for a pipe means the same.
func (s *Stream) Fill(pool *Pool, reader io.Reader) {
	buffer, giveBack := pool.Scratch()
	defer giveBack()
	for {
		count, err := reader.Read(buffer)
		if count > 0 {
			s.take(buffer[:count])
		}
		if err != nil {
			s.close()
			return
		}
	}
}

// take keeps what belongs to the first half, and gives the rest to the last.
func (s *Stream) take(data []byte) {
	s.mutex.Lock()
	if s.deaf {
		s.mutex.Unlock()
		return
	}
	first := s.head.push(data[:min(len(data), s.headRoom)], false)
	s.headRoom -= first
	if first < len(data) {
		// No more memory, or no more room: what comes later may not come before this.
		s.headRoom = 0
		s.keepLast(data[first:])
	}
	s.mutex.Unlock()
	if first > 0 {
		s.wake()
	}
}

func (s *Stream) keepLast(data []byte) {
	if over := len(data) - s.tailRoom; over > 0 {
		s.dropped += int64(over)
		data = data[over:]
	}
	if over := s.tail.size + len(data) - s.tailRoom; over > 0 {
		s.tail.drop(over)
		s.dropped += int64(over)
	}
	for len(data) > 0 {
		stored := s.tail.push(data, true)
		data = data[stored:]
		if len(data) > 0 && stored == 0 {
			// The pool is empty: the oldest makes place for the newest.
			s.dropped += int64(s.tail.dropChunk())
		}
	}
}

func (s *Stream) close() {
	s.mutex.Lock()
	s.closed = true
	s.mutex.Unlock()
	s.wake()
}

// Closed says whether the pipe's other side was closed by all that held it.
func (s *Stream) Closed() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.closed
}

// Next moves what of the first half is to be sent into the buffer.
func (s *Stream) Next(buffer []byte) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.head.pull(buffer)
}

// Finish ends the keeping: from here on Last gives what there is, and nothing more comes.
func (s *Stream) Finish() (dropped int64) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.deaf = true
	return s.dropped
}

// Last moves the last half into the buffer.
func (s *Stream) Last(buffer []byte) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.tail.pull(buffer)
}

// Free forgets all that was not sent.
func (s *Stream) Free() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.deaf = true
	s.head.clear()
	s.tail.clear()
}
