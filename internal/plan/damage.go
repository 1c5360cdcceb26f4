package plan

import (
	"fmt"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

// maxDamage is how much of a damage's description messages show, in characters.
const maxDamage = 1024

// Damage says what is wrong with a checkpoint that is damaged, and which earlier one is intact.
func Damage(i history.Integrity) string {
	what := resources.PlainText(i.Damage, maxDamage)
	if i.IntactBefore < 1 {
		return what + "; no earlier checkpoint of the task is intact"
	}
	return fmt.Sprintf("%s; checkpoint %d is the nearest earlier one that is intact", what, i.IntactBefore)
}
