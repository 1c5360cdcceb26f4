package postgres

import (
	"reflect"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

// filled sets everything that a value can hold: each text to the given one, each list and
// map to n elements. Values that are not text are left alone.
func filled(v reflect.Value, text string, n int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(v.Elem(), text, n)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for _, field := range v.Fields() {
			filled(field, text, n)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(text))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			filled(v.Index(i), text, n)
		}
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{}))
		for i := range n {
			v.SetMapIndex(reflect.ValueOf(strings.Repeat("k", i)+text), reflect.ValueOf(text))
		}
	}
}

// texts returns the total length of a value's texts.
func texts(v reflect.Value) (n int64) {
	switch v.Kind() {
	case reflect.String:
		return int64(v.Len())
	case reflect.Pointer:
		if !v.IsNil() {
			return texts(v.Elem())
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return 0
		}
		for _, field := range v.Fields() {
			n += texts(field)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return int64(v.Len())
		}
		for i := range v.Len() {
			n += texts(v.Index(i))
		}
	case reflect.Map:
		for iter := v.MapRange(); iter.Next(); {
			n += int64(iter.Key().Len() + iter.Value().Len())
		}
	}
	return n
}

// kinds returns a record of each kind that takes space, with all fields set.
func kinds(text string, n int) map[string]history.Record {
	records := map[string]history.Record{}
	for _, kind := range []string{"Message", "Checkpoint", "Event", "Piece", "Move", "Gap"} {
		var r history.Record
		filled(reflect.ValueOf(&r).Elem().FieldByName(kind), text, n)
		if c := r.Checkpoint; c != nil {
			// The store sets these itself.
			c.TaskUID, c.Refused, c.Digest, c.Position = "", "", "", history.Position{}
		}
		records[kind] = r
	}
	return records
}

var _ = Describe("What a record costs", func() {
	It("all contents of a record are counted", func() {
		for kind, r := range kinds(strings.Repeat("x", 100), 3) {
			Expect(cost(r)).To(BeNumerically(">=", recordCost+texts(reflect.ValueOf(r))), "a field of %s is not counted", kind)
		}
	})

	// The texts of messages are cut into pieces and counted; nothing else may be long.
	It("secondary contents of a record are bounded", func() {
		for kind, r := range kinds(strings.Repeat("\x00", 1<<20), 40) {
			if m := r.Message; m != nil {
				m.Role = conversation.RoleAssistant
				for _, text := range m.Texts() {
					*text.Text, *text.Pieces = "", nil
				}
			}
			if kind == "Piece" {
				continue // has a length of its own
			}
			before := texts(reflect.ValueOf(r))
			Expect(cost(bounded(r))).To(BeNumerically("<", 128<<10), "a field of %s has no bound", kind)
			Expect(texts(reflect.ValueOf(r))).To(Equal(before), "the record that was given stays as it is")
		}
	})

	It("a list of files is cut, but not its paths", func() {
		var c history.Checkpoint
		for range maxChanges + 1 {
			c.Changes = append(c.Changes, history.FileChange{Path: strings.Repeat("p", 50), Action: "Added"})
		}
		c.DirtyFiles = []string{"a", strings.Repeat("b", listedBytes), "c"}
		c = boundedCheckpoint(c)
		Expect(c.Changes).To(HaveLen(maxChanges))
		Expect(c.DirtyFiles).To(Equal([]string{"a"}))
	})
})
