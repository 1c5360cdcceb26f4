// Package other is no API, and may do as it likes.
package other

type Spec struct {
	Phase string
	On    bool
}
