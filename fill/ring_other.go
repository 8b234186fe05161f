//go:build !linux

package fill

import (
	"errors"
	"time"
)

// ringSleeper does not exist here.
type ringSleeper struct{}

func (*ringSleeper) enter() error        { return errors.ErrUnsupported }
func (*ringSleeper) leave()              {}
func (*ringSleeper) sleep(time.Duration) {}
func (*ringSleeper) wake()               {}
