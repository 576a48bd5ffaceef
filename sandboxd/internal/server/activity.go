package server

import (
	"sync"
	"time"
)

// activity knows for how long nobody has used the sandbox, by the monotonic clock.
type activity struct {
	mutex  sync.Mutex
	active int
	last   time.Time
}

func newActivity() *activity {
	return &activity{last: time.Now()}
}

func (a *activity) begin() {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.active++
}

func (a *activity) end() {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.active--
	a.last = time.Now()
}

func (a *activity) idle() time.Duration {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.active > 0 {
		return 0
	}
	return time.Since(a.last)
}
