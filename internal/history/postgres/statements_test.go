package postgres

import (
	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/searchtext"
)

// SearchStatement returns the statement that Search sends, so that its plan can be
// checked.
func SearchStatement(query history.SearchQuery) (string, pgx.NamedArgs) {
	return searchStatement(query, searchtext.Parse(query.Text).Text, quoteWord(namespaceWord(query.Namespace)))
}

// TasksStatement returns the statement that Tasks sends.
func TasksStatement(query history.TaskQuery) (string, pgx.NamedArgs, error) {
	o, err := orderOf(query.Sort)
	if err != nil {
		return "", nil, err
	}
	statement, args := tasksStatement(query, o)
	return statement, args, nil
}

// ForgetSums has a store count anew what namespaces have, which it keeps for a few seconds.
func ForgetSums(s *Store) { s.limits.sums = newLimits(s.limits.Limits).sums }
